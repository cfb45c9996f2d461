"""What a killed run loses: nothing that was finished, nothing that was recorded."""
