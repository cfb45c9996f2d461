"""The vocabulary of the house: plain data and rules, no input or output."""
