#!/usr/bin/env python3
"""Write examples/documents/tide-prediction.pdf: an article of three pages in two columns.

    pip install reportlab && python3 tools/pdf/make_example_pdf.py examples/documents/tide-prediction.pdf

The text was written for this project.
"""

import sys

from reportlab.lib import colors
from reportlab.lib.enums import TA_CENTER, TA_JUSTIFY
from reportlab.lib.pagesizes import A4
from reportlab.lib.styles import ParagraphStyle
from reportlab.lib.units import mm
from reportlab.platypus import BaseDocTemplate, Frame, FrameBreak, KeepTogether, NextPageTemplate, PageTemplate, Paragraph, Spacer, Table, TableStyle

WIDTH, HEIGHT = A4
MARGIN, GUTTER = 24 * mm, 9 * mm
COLUMN = (WIDTH - 2 * MARGIN - GUTTER) / 2
TITLE = "Brass, Paper and the Moon: How the Tides Were Predicted"

BODY = ParagraphStyle("body", fontName="Times-Roman", fontSize=12, leading=16.5, alignment=TA_JUSTIFY, spaceAfter=4, firstLineIndent=0)
HEAD = ParagraphStyle("head", fontName="Helvetica-Bold", fontSize=12, leading=15, spaceBefore=8, spaceAfter=4)
MAIN = ParagraphStyle("main", fontName="Helvetica-Bold", fontSize=19, leading=23, alignment=TA_CENTER)
BY = ParagraphStyle("by", fontName="Times-Italic", fontSize=12, leading=16.5, alignment=TA_CENTER, spaceBefore=4)
CAPTION = ParagraphStyle("caption", fontName="Times-Italic", fontSize=9, leading=11, spaceBefore=3, spaceAfter=8)
ITEM = ParagraphStyle("item", parent=BODY, leftIndent=12, bulletIndent=2, alignment=0)

FOOTNOTE = [
    "John Lubbock and William Whewell led this work; much of the",
    "computing was done by Joseph Dessiou at the Admiralty.",
]

SECTIONS = [
    (
        "1 A question older than its answer",
        [
            "Anyone who has left a boat on a beach knows that the sea keeps an appointment. On most coasts it comes in and goes out twice in a little more than a day, and the hour shifts by about fifty minutes from one day to the next, just as the moon rises about fifty minutes later. People who lived by the shore drew the conclusion long before anybody could explain it. A thirteenth-century table for London Bridge lists the hour of high water for each day of the moon's age, and it was copied for generations because it was good enough to bring a barge upriver.",
            "Good enough, that is, for one bridge. The same rule, carried to the next estuary, could be wrong by hours. The moon governs the tide, but the coast decides how the water moves: a wide shelf delays it, a funnel heaps it up, and an inlet of the right length rings like a bell. Whoever wanted to predict the tide at a new port had to watch it there, and watching alone takes a very long time.",
        ],
    ),
    (
        "2 Newton explains, Laplace calculates",
        [
            "In 1687 Newton showed why there are two high waters a day and not one. The moon pulls most strongly on the near side of the earth and least on the far side, so that the water is stretched in both directions. His picture of an ocean at rest under two bulges explains spring tides and neap tides at once. As a tool for a harbour master it is useless: the real ocean never has the time to come to rest.",
            "Laplace, ninety years later, treated the tide as what it is, a wave that is driven. He wrote down the equations for water on a turning globe and saw that the answer must be a sum of oscillations, each with a period known from astronomy and each with a height and a delay that depend on the place. Nobody could calculate the heights from the shape of the sea floor. But Laplace's form of the answer told later generations what to look for in their readings.",
        ],
    ),
    (
        "3 Readings by the hour",
        [
            "The nineteenth century built gauges. A float in a well beside the quay moved a pencil over a drum turned by a clock, and for the first time the whole curve of the tide was on paper, at night and in fog as well. Dockyards along the English Channel sent their rolls to London, where clerks read off the hourly heights and entered them in ledgers.[1] From such ledgers tables for the coming year were drawn up, port by port, by comparing with years in which the moon had stood in the same place.",
            "Then, in 1867, William Thomson proposed to do for the tide what Fourier had done for heat. He took the ledger of a whole year and sifted it, by long multiplication, for each of the known periods in turn. What remained for each was a pair of numbers, and these numbers did not change. A port that had been analysed once could be predicted for any year, past or future, by adding up its constituents. Table 1 lists those that matter nearly everywhere.",
        ],
    ),
    (
        "4 The machine that added cosines",
        [
            "Adding them up was the trouble. Ten constituents, evaluated for every hour of a year, make nearly ninety thousand cosines, and a careful clerk could manage a few hundred a day. Thomson's answer was made of brass. In his machine a cord ran over and under a row of pulleys. Each pulley was moved up and down by a crank, each crank turned at the speed of one constituent, and the free end of the cord moved by the sum of all of them. A pen fixed to it drew the curve of the tide, and a year of it was drawn in an afternoon.",
            "The idea spread quickly. Machines were built with ten wheels, then with twenty-four, then with forty. They were set with great care:",
            "*the throw of each crank, from the height of its constituent;",
            "*the starting angle of each crank, from its delay and the date;",
            "*the zero of the pen, from the level to which the charts were drawn.",
            "After a run the machine was turned to the last day of the year and compared with a calculation by hand. If the two agreed, so did everything between them, and the rolls went to the printer.",
        ],
    ),
    (
        "5 Predictions in wartime",
        [
            "In 1943 the machines became secret. Landings on a defended beach needed low water to reveal the obstacles, a rising tide to float the boats off again, and enough moonlight to see by. Arthur Doodson, at Bidston near Liverpool, was sent sets of constituents for a place without a name. He kept his two machines in rooms far apart, so that one bomb could not destroy both, and had them run for months. The coast was that of Normandy, and few readings existed for it; his figures for the morning of the sixth of June served the landings well.",
            "It was the last great service of the brass. By the middle of the 1960s electronic computers evaluated the same sums in seconds, and the machines went to museums, where several of them can still be turned by hand.",
        ],
    ),
    (
        "6 Shallow water and other trouble",
        [
            "Two kinds of place resisted the method for a long time. The first are the shallow estuaries. There the crest of the wave travels in deeper water than the trough and overtakes it, so that the tide rises fast and falls slowly, and the curve leans forward like a breaker. A leaning curve can still be written as a sum of cosines, but it needs overtones, periods of a quarter and a sixth of a day that have no cause in the sky. The analysts called them shallow-water constituents and gave them names such as M4 and MS4. For the port of Hamburg more than a hundred are in use.",
            "The second kind are the places where the tide almost vanishes. In the middle of the North Sea there is a point around which the high water turns like the hand of a clock and at which the level hardly changes at all. Whewell had guessed as much from the hours at the coasts around it, and he asked a naval officer to anchor a boat there and to sound the depth for a day. The officer did so, in a rolling boat, and found the sea to be level to within a foot. The charts that Whewell drew from the guess are close to those that satellites have made since.",
            "Rivers add a third. Up the Severn and the Qiantang the tide arrives as a step, a wall of broken water that runs against the stream, and no number of overtones describes a step well. The tables for such rivers give the hour at which the bore passes a certain bridge, and they are still made as the monks made theirs: by watching, and by writing it down.",
        ],
    ),
    (
        "7 What has remained",
        [
            "The method has outlived the machine. Tide tables are still computed from harmonic constituents, more than a hundred of them at ports in shallow water, and they are still found by analysing a year of readings or more. Satellites now measure the constituents of the open ocean from above, to about a centimetre. What no sum of cosines can hold is the weather. A storm may add two metres to a prediction or take them away, and so the tables carry the same warning that they did in Thomson's day: they tell what the moon will do, and not what the wind will.",
        ],
    ),
]

TABLE = [
    ["Symbol", "Cause", "Period (h)"],
    ["M2", "moon, twice a day", "12.42"],
    ["S2", "sun, twice a day", "12.00"],
    ["N2", "moon's distance", "12.66"],
    ["K1", "sun and moon, daily", "23.93"],
    ["O1", "moon, daily", "25.82"],
]


def furniture(page, document):
    page.saveState()
    page.setFont("Helvetica", 8)
    page.drawString(MARGIN, HEIGHT - 12 * mm, "Ehun example documents")
    page.drawRightString(WIDTH - MARGIN, HEIGHT - 12 * mm, "The history of tide prediction")
    page.drawCentredString(WIDTH / 2, 10 * mm, str(document.page))
    page.restoreState()


def first_page(page, document):
    furniture(page, document)
    page.saveState()
    x = MARGIN + COLUMN + GUTTER
    page.setLineWidth(0.4)
    page.line(x, 35 * mm, x + 30 * mm, 35 * mm)
    page.setFont("Times-Roman", 5)
    page.drawString(x, 31.6 * mm, "1")
    page.setFont("Times-Roman", 8)
    for n, line in enumerate(FOOTNOTE):
        page.drawString(x + 4, 30.5 * mm - n * 9.5, line)
    page.restoreState()


def story():
    yield Paragraph(TITLE, MAIN)
    yield Paragraph("An example document of the Ehun project", BY)
    yield FrameBreak()
    yield NextPageTemplate("later")
    for heading, paragraphs in SECTIONS:
        yield Paragraph(heading, HEAD)
        for text in paragraphs:
            if text.startswith("*"):
                yield Paragraph(text[1:], ITEM, bulletText="•")
            else:
                yield Paragraph(text.replace("[1]", '<super size="6">1</super>'), BODY)
        if heading.startswith("3"):
            table = Table(TABLE, colWidths=[COLUMN * 0.2, COLUMN * 0.52, COLUMN * 0.28], rowHeights=14)
            style = [("GRID", (0, 0), (-1, -1), 0.4, colors.black), ("FONT", (0, 0), (-1, -1), "Times-Roman", 9), ("FONT", (0, 0), (-1, 0), "Helvetica-Bold", 9), ("VALIGN", (0, 0), (-1, -1), "MIDDLE")]
            table.setStyle(TableStyle(style))
            caption = Paragraph("Table 1: The five constituents that make up most of the tide on most coasts, with their periods in hours.", CAPTION)
            yield KeepTogether([Spacer(1, 4), table, caption])


def main():
    document = BaseDocTemplate(sys.argv[1], pagesize=A4, title=TITLE, author="The Ehun project", subject="The history of tide prediction", keywords="tides, harmonic analysis, history of computing", lang="en-GB", invariant=1)
    none = {"leftPadding": 0, "rightPadding": 0, "topPadding": 0, "bottomPadding": 0}
    top = HEIGHT - 18 * mm
    right = MARGIN + COLUMN + GUTTER
    head = 32 * mm
    title = Frame(MARGIN, top - head, WIDTH - 2 * MARGIN, head - 6 * mm, **none)
    first = [title, Frame(MARGIN, 20 * mm, COLUMN, top - head - 20 * mm, **none), Frame(right, 40 * mm, COLUMN, top - head - 40 * mm, **none)]
    later = [Frame(x, 20 * mm, COLUMN, top - 20 * mm, **none) for x in (MARGIN, right)]
    document.addPageTemplates([PageTemplate("first", first, onPage=first_page), PageTemplate("later", later, onPage=furniture)])
    document.build(list(story()))


if __name__ == "__main__":
    main()
