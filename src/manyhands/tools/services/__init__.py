"""Tools that ask services and models beyond the sandbox, and what they need."""
