"""Reports as single HTML files without network access and without script, and the model card.

One module per report, with its values and `render`; `page` fills the templates next to it.
"""
