"""Short common words, most of them one token in any vocabulary."""

_TEXT = """
apple arm army baby ball bank bed bell bird blood boat body book bottle bowl box bread bridge
brother bus cake camp captain card castle cat chair chicken child church city clock cloud coat
coffee corn cow crown cup dance desk doctor dog door dress drink driver ear earth egg engine eye
face farm father field finger fire fish flag floor flower foot forest friend fruit game garden gate
girl glass gold grass hair hand hat head heart hill home horse hospital hotel house ice iron island
jacket judge juice key king kitchen knife lady lake lamp leaf leg letter library lion lip market
meat milk mirror money moon morning mother mountain mouse mouth music neck night nose ocean office
oil orange page paint paper park pen phone picture pig pilot plane plant plate pocket poem prince
queen radio rain river road rock roof room rose salt school sea ship shirt shoe shop silver singer
sister skin sky smoke snow soldier song soup spring square star station stone storm street sugar sun
table tail tea teacher temple tree truck valley village wall watch water wheel wife wind window wine
wing winter wolf wood world yard
"""
WORDS = tuple(_TEXT.split())
