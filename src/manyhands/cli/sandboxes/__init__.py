"""Commands about sandboxes."""
