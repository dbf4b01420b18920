"""English stop words: words that carry grammar rather than content."""

_ENGLISH = """
    a about above after again against ain't all am an and any are aren't as at be because been before
    being below between both but by can can't cannot could couldn't did didn't do does doesn't doing don't
    down during each either else ever few for from further had hadn't has hasn't have haven't having he
    he'd he'll her here hers herself him himself his how i i'd i'll i'm i've if in into is isn't it it'd
    it'll its itself just let may me might mightn't more most must mustn't my myself needn't neither no
    nor not now of off on once only onto or other others ought our ours ourselves out over own per same
    shall shan't she she'd she'll should shouldn't so some such than that the their theirs them themselves
    then there these they they'd they'll they're they've this those though through thus to too under until
    up upon us very via was wasn't we we'd we'll we're we've were weren't what when where whether which
    while who whom whose why will with within without won't would wouldn't yet you you'd you'll you're
    you've your yours yourself yourselves
"""
STOP_WORDS = frozenset(_ENGLISH.split())
