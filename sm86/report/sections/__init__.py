"""One module for each part of a report: the matter of one machine in, sections out. Pure."""
