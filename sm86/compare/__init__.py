"""Two runs beside each other: what moved beyond noise, and what differs in their conditions."""
