"""Container images: what a reference means, pinned for a whole run, and how an image gets here."""
