"""The files of a sandbox: reached safely, counted, kept at checkpoints."""
