"""Jobs in the background: started, followed and steered."""
