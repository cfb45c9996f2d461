"""What an answer says: numbers, mentions, JSON, requests to a judge."""
