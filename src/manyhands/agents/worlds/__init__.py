"""Where agents work: what an item asks of its world, and the sandbox of an attempt."""
