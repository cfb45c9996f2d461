"""The vocabulary of the house: plain data and rules. The only file that any of it makes is a temporary one of ``digest_table``."""
