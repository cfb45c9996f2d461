"""The pages of the web app: from what an address asks for to the values that a template shows."""
