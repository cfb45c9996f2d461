"""``manyhands tools``: what tools there are, and whether they can be had here."""
