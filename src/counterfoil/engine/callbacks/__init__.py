"""The callback inbox: records callbacks that were not accepted, and reads and replays all of them."""
