"""Where items are executed: in this process (``local``) or in worker processes (``processes``, ``wire``, ``worker``)."""
