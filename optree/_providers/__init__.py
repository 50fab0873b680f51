"""What is known of providers' requests, answers, streams, usage and prices, whoever recorded them: told by their shapes.

In come JSON values and the objects that clients return; out go messages, whole answers, tokens and costs of one convention. Nothing here
records, asks or keeps anything, but for the table of prices.
"""
