"""Measurements for developers: `reactor bench`, the race, the cost of disks, rules and the simulator."""
