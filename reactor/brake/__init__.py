"""The brake: memory.high keeps a hog from outrunning the kill. It can be taken out.

braking decides which cgroups are held up, and how far; brake writes memory.high; release puts back what was
there, also after a crash.
"""
