"""What pages about jobs are made of: the table with what was reported, the parts of a row, what differs between two jobs."""
