"""Jobs as tools over MCP."""
