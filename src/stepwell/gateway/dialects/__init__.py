"""One file per wire format of a chat API."""
