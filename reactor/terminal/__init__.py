"""Tables and screens for people: status, explain, top."""
