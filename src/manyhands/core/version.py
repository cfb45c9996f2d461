"""The version of this program, as recorded with every run."""

VERSION = "0.1.0"
