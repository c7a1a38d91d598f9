"""What was found, for people: one data model, shown as text, as markdown, or as one HTML file with plots."""

import logging

logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it tells at length of a home that can't be written
