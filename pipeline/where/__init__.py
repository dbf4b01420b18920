"""The language of filters, such as `price < 10 and lang = 'de'`: parsed, then evaluated over columns."""
