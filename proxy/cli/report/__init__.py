"""`slowtok report`: a day or a week of the log on one page."""
