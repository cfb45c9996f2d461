"""What the tests share: commands, runs, servers and folders. Doubles that others may use, too, are in ``manyhands.testing``."""
