"""One module for each wire format that the agent can speak."""
