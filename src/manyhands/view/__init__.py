"""The web app to look at runs, and the static report made of the same parts."""
