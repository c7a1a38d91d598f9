"""What was found, for people: one data model, shown as text, as markdown, or as one HTML file with plots."""
