"""Tests of targets of exports that need no release."""
