"""What a conversation leaves: records, files, figures."""
