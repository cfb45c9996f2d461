"""Pages as files that nobody has to serve: documents in one file, reports about runs, and folders of pages that lead to each other."""
