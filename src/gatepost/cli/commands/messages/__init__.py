"""Commands about messages: send, wait for, read, settle, trace."""
