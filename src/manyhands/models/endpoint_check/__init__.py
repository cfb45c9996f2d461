"""What an endpoint can do, found out by asking it."""
