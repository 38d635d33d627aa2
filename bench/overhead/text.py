"""The text that the bench runs on; a step costs the same whatever it says."""

TEXT = """\
A harbour town keeps a bell in the tower above the quay. It is not rung for the hours, and it is
not rung at weddings; it has one use. When the keeper of the light sees that something is wrong,
a boat adrift, smoke over the roofs, a lamp that should burn and does not, he pulls the rope, and
everybody who hears it knows that the next few minutes are not like the others. Nobody asks the
bell what happened. It says that something did, and where it hangs says which way to look.

The people of the town argued for a year about how loud it should be. A bell that rings at every
gust is a bell that nobody hears, said the baker, who sleeps in the afternoon. A bell that rings
only when the fleet is lost is a bell for the dead, said the widow who repairs the nets. In the
end they wrote a list. The wind alone is no reason. A gull on the lamp is no reason. A light that
goes out and comes back by itself is written down and told in the morning. Everything else is
rung, and whoever rings it goes down to the quay and says what was seen, with a time and a place.

In the nineteenth winter the keeper began to count. Of a hundred nights on which a boat came home
with damage, the bell had rung on ninety-six. Of the four that it missed, three were boats whose
lamps had burned as they should while the hull let in water. So they gave every boat a float with
a flag on a string, which cost less than a lamp and needs no oil, and the keeper counted again.
"""
