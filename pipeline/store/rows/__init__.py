"""Addresses of rows, Arrow schemas of units, and conversions between Arrow and numpy."""
