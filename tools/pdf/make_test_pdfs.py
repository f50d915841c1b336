#!/usr/bin/env python3
"""Write the small PDFs that the tests of ehun-documents read.

    pip install reportlab pypdf python-bidi arabic-reshaper && python3 tools/pdf/make_test_pdfs.py crates/ehun-documents/tests/pdf

Files are the same on every run (but for the encrypted ones). The expected texts beside them are rewritten by
`EHUN_UPDATE_GOLDENS=1 cargo test -p ehun-documents --test pdf`; look at the difference before committing it.
"""

import io
import pathlib
import sys
import zlib

import arabic_reshaper
import pypdf
from bidi.algorithm import get_display
from reportlab.lib.utils import ImageReader
from reportlab.pdfbase import pdfmetrics
from reportlab.pdfbase.ttfonts import TTFont
from reportlab.pdfgen import canvas

DEJAVU = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf"
WIDTH, HEIGHT = 595, 842


def sheet(path, **options):
    return canvas.Canvas(str(path), pagesize=(WIDTH, HEIGHT), invariant=1, pageCompression=1, **options)


def text(page, x, y, lines, font="Helvetica", size=10, leading=12):
    """Lines from y downwards (y from the bottom, as PDF counts)."""
    for n, line in enumerate(lines):
        page.setFont(font, size)
        page.drawString(x, y - n * leading, line)


LEFT = [
    "The level of the sea rises and falls twice a",
    "day on most coasts, and people who live by it",
    "have always wanted to know when. Long before",
    "anybody could say why, fishermen kept tables",
    "that told the hour of high water by the age of",
    "the moon, and harbour masters guarded their",
    "well-known rules of thumb like secrets. A pre-",
    "diction that holds for one port is worth no-",
    "thing at the next one, because the shape of",
]
RIGHT = [
    "the coast decides how the water moves. Only",
    "after harmonic analysis had been invented was",
    "there a method that worked everywhere, given",
    "a year of careful readings at the pier.",
]


def columns(path):
    page = sheet(path)
    page.setTitle("Tides and tables")
    page.setAuthor("A. Tester")
    for number in (1, 2, 3):
        page.setFont("Helvetica", 8)
        page.drawString(60, 805, "Journal of Imaginary Tides")
        page.drawRightString(535, 805, "Vol. 7")
        page.drawCentredString(297, 30, str(number))
        if number == 1:
            page.setFont("Helvetica-Bold", 20)
            page.drawCentredString(297, 760, "Tides, Tables and the Moon")
            text(page, 60, 720, ["1 Introduction"], "Helvetica-Bold", 13)
            text(page, 60, 700, LEFT)
            text(page, 310, 720, RIGHT)
            text(page, 310, 650, ["2 Readings"], "Helvetica-Bold", 13)
            text(page, 310, 630, ["All readings of the first year stand in the", "table below.¹ They were taken by hand, every", "hour, in all weathers."])
            for n, row in enumerate([("Port", "High", "Low"), ("Aldmouth", "4.1", "0.6"), ("Bexley Quay", "5.3", "0.9")]):
                for x, cell in zip((64, 184, 244), row):
                    text(page, x, 536 - 18 * n, [cell], "Helvetica-Bold" if n == 0 else "Helvetica")
            page.setLineWidth(0.5)
            for y in (550, 532, 514, 496):
                page.line(60, y, 290, y)
            for x in (60, 180, 240, 290):
                page.line(x, 550, x, 496)
            text(page, 60, 480, ["Table 1: Mean heights of high and low water", "in metres."], size=9)
            page.line(310, 110, 380, 110)
            page.setFont("Helvetica", 5)
            page.drawString(310, 101, "1")
            text(page, 314, 98, ["Except for eleven days in March, when the", "tide gauge was frozen."], size=8, leading=10)
        elif number == 2:
            text(page, 60, 720, ["3 Machines"], "Helvetica-Bold", 13)
            text(page, 60, 700, ["A brass machine added up the cosine curves and", "drew their sum on paper. What took a clerk", "months it did in an afternoon. Its wheels were", "cut so that each turned at the speed of one"])
        else:
            text(page, 60, 720, ["constituent of the tide, and it was wound by", "hand until the last year of its long service."])
            for n, line in enumerate(["• the moon, twice a day", "• the sun, twice a day", "• the moon's distance"]):
                text(page, 60, 670 - 14 * n, [line])
            text(page, 60, 600, ["def height(t):", "    return sum(a * cos(w * t) for a, w in parts)"], "Courier", 9)
        page.showPage()
    page.save()


def aligned_table(path):
    """A table without rules, and text around it."""
    page = sheet(path)
    text(page, 60, 760, ["The gauges were read at noon. The figures are rounded to full centimetres", "and have not been corrected for the pressure of the air."])
    rows = [("Station", "Depth", "Rise", "Remark"), ("Eastpier", "412", "12", "calm"), ("Old Dock", "388", "9", "swell"), ("Sandbank", "290", "31", "wind from the west")]
    for n, row in enumerate(rows):
        for x, cell in zip((60, 160, 230, 300), row):
            text(page, x, 715 - 14 * n, [cell])
    text(page, 60, 640, ["After noon the gauges were not read again. The men had gone home, and", "nobody thought that it would matter."])
    page.showPage()
    page.save()


def right_to_left(path):
    """Drawn in visual order, as most writers do."""
    pdfmetrics.registerFont(TTFont("DejaVu", DEJAVU))
    page = sheet(path)
    shalom = "שלום עולם, זה מסמך"
    page.setFont("DejaVu", 12)
    page.drawRightString(535, 760, shalom[::-1])
    page.drawRightString(535, 742, "םימי 365 שי הנשב")
    page.drawString(60, 700, "Left to right with the word " + "שלום"[::-1] + " in it.")
    # Arabic in presentation forms, as a shaping engine leaves them: "salam".
    page.drawRightString(535, 680, "\ufee1\ufefc\ufeb3")
    # A ligature drawn as one glyph.
    page.drawString(60, 650, "An e\ufb03cient \ufb01sh")
    page.showPage()
    page.save()


# What a reader should have of the next file, line by line; the drawing is left to python-bidi and arabic_reshaper.
RIGHT_TO_LEFT_TEXT = [
    "בשנת 2024 נמדדו כאן 12.5 מטר מעל לקו המים (בערך), והרישומים",
    "נשמרו בארכיון של הנמל. הספר The Sea מזכיר אותם בפרק 3 בלבד,",
    "וגם שם נפלה טעות: ביום 14/05/1948 בשעה 16:00 לא נמדד דבר.",
]
RIGHT_TO_LEFT_LIST = ["• מד הגובה של הנמל", "• שעון עם 24 שעות", "• יומן בשם Log A"]
RIGHT_TO_LEFT_TABLE = [["נמל", "גאות", "שפל"], ["חיפה", "4.1", "0.6"], ["יפו", "5.3", "0.9"]]
ARABIC_TEXT = ["كان البحر هادئا في صباح ذلك اليوم، ولم يكن في الميناء سوى", "ثلاث سفن وصلت عام 1948 محملة بالقمح والزيت."]


def right_to_left_mixed(path):
    """Numbers, dates, brackets and Latin words within right-to-left text; a list and a table; Arabic as shaped."""
    pdfmetrics.registerFont(TTFont("DejaVu", DEJAVU))
    page = sheet(path)
    page.setFont("DejaVu", 11)

    def line(x, y, text):
        page.drawRightString(x, y, get_display(text, base_dir="R"))

    for n, text in enumerate(RIGHT_TO_LEFT_TEXT):
        line(535, 760 - 14 * n, text)
    for n, text in enumerate(RIGHT_TO_LEFT_LIST):
        line(535, 690 - 16 * n, text)
    for n, row in enumerate(RIGHT_TO_LEFT_TABLE):
        for x, cell in zip((530, 430, 330), row):
            line(x, 596 - 18 * n, cell)
    page.setLineWidth(0.5)
    for y in (610, 592, 574, 556):
        page.line(235, y, 535, y)
    for x in (235, 335, 435, 535):
        page.line(x, 610, x, 556)
    for n, text in enumerate(ARABIC_TEXT):
        line(535, 510 - 16 * n, arabic_reshaper.reshape(text))
    page.showPage()
    page.save()


def rotated(path):
    page = sheet(path)
    # The page is turned, and its text turned against it: upright for the reader.
    page.setPageRotation(90)
    page.saveState()
    page.translate(WIDTH, 0)
    page.rotate(90)
    text(page, 60, 500, ["This page is turned by its Rotate entry, and", "its text reads upright on the screen."])
    page.restoreState()
    page.showPage()
    # The text is turned, the page is not.
    page.setPageRotation(0)
    page.saveState()
    page.translate(WIDTH, 0)
    page.rotate(90)
    text(page, 60, 500, ["A wide table was laid sideways on this page,", "and a reader has to turn the book."])
    page.restoreState()
    page.showPage()
    text(page, 100, 700, ["Upright text stands in the middle of a page with", "a mark along its margin and another across it."])
    page.saveState()
    page.translate(40, 300)
    page.rotate(90)
    text(page, 0, 0, ["arXiv:0000.00000"])
    page.restoreState()
    page.saveState()
    page.translate(200, 300)
    page.rotate(45)
    page.setFillGray(0.8)
    text(page, 0, 0, ["DRAFT"], size=60)
    page.restoreState()
    page.showPage()
    page.save()


def hidden(path):
    page = sheet(path)
    text(page, 60, 760, ["This line can be seen by every reader of the page."])
    render = page.beginText(60, 730)
    render.setFont("Helvetica", 10)
    render.setTextRenderMode(3)
    render.textLine("Invisible by render mode.")
    render.setTextRenderMode(0)
    page.drawText(render)
    page.setFillGray(1)
    text(page, 60, 700, ["White on white."])
    page.setFillColorRGB(0.1, 0.2, 0.6)
    page.rect(55, 660, 300, 20, stroke=0, fill=1)
    page.setFillGray(1)
    text(page, 60, 666, ["White on blue is read by all."])
    page.setFillColorRGB(0.1, 0.2, 0.6)
    text(page, 250, 666, ["Blue on blue."])
    page.setFillGray(0)
    text(page, -400, 600, ["Off the page."])
    text(page, 60, 570, ["Far too small to read."], size=0.4)
    page.saveState()
    clip = page.beginPath()
    clip.rect(60, 500, 100, 20)
    page.clipPath(clip, stroke=0, fill=0)
    text(page, 300, 505, ["Clipped away."])
    page.restoreState()
    page.showPage()
    page.save()


def picture(shade):
    from PIL import Image

    image = Image.new("L", (60, 80), 235)
    for y in range(10, 70, 6):
        for x in range(8, 52):
            image.putpixel((x, y), shade)
    return ImageReader(image)


def scans(path):
    page = sheet(path)
    # A scan with an OCR layer, a scan without, a page of text, an empty page.
    page.drawImage(picture(40), 0, 0, WIDTH, HEIGHT)
    layer = page.beginText(60, 700)
    layer.setFont("Helvetica", 11)
    layer.setTextRenderMode(3)
    layer.textLine("Recognised text of a scanned page, laid")
    layer.textLine("below its picture by an OCR tool.")
    page.drawText(layer)
    page.showPage()
    page.drawImage(picture(60), 0, 0, WIDTH, HEIGHT)
    page.showPage()
    text(page, 60, 700, ["A page of real text follows the scans."])
    page.showPage()
    page.showPage()
    page.save()


def encrypted(path, user):
    plain = io.BytesIO()
    page = canvas.Canvas(plain, pagesize=(WIDTH, HEIGHT), invariant=1)
    text(page, 60, 700, ["Opened without being asked for a password."])
    page.showPage()
    page.save()
    writer = pypdf.PdfWriter(clone_from=io.BytesIO(plain.getvalue()))
    writer.encrypt(user, "owner", algorithm="RC4-128")
    writer.write(str(path))


def raw(objects, trailer="/Root 1 0 R", xref=True):
    """A PDF from the bodies of its objects, numbered from 1."""
    out = bytearray(b"%PDF-1.7\n")
    offsets = []
    for number, body in enumerate(objects, 1):
        offsets.append(len(out))
        out += f"{number} 0 obj\n".encode() + (body if isinstance(body, bytes) else body.encode("latin-1")) + b"\nendobj\n"
    start = len(out)
    if xref:
        out += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
        for offset in offsets:
            out += f"{offset:010} 00000 n \n".encode()
    else:
        start = 999_999
    out += f"trailer\n<< /Size {len(objects) + 1} {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(out)


def stream(data, entries=""):
    return f"<< {entries} /Length {len(data)} >>\nstream\n{data}\nendstream"


def deflated(data):
    packed = zlib.compress(data.encode("latin-1"), 9)
    return f"<< /Filter /FlateDecode /Length {len(packed)} >>\nstream\n".encode() + packed + b"\nendstream"


FONT = "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>"
PAGE = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 4 0 R /Resources << /Font << /F 5 0 R >> %s >> >>"
SHOW = "BT /F 12 Tf 60 700 Td (%s) Tj ET"


def raw_files(folder):
    catalog, pages = "<< /Type /Catalog /Pages 2 0 R /Lang (en-GB) >>", "<< /Type /Pages /Kids [3 0 R] /Count 1 >>"

    def write(name, objects, **options):
        (folder / name).write_bytes(raw(objects, **options))

    plain = [catalog, pages, PAGE % "", stream(SHOW % "The cross-reference table of this file is missing."), FONT]
    write("no-xref.pdf", plain, xref=False)
    # A form that draws itself, and a page tree that holds itself.
    form = stream("BT /F 12 Tf 60 650 Td (A form that draws itself.) Tj ET /X Do", "/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources << /Font << /F 5 0 R >> /XObject << /X 6 0 R >> >>")
    loop = "<< /Type /Pages /Kids [3 0 R 2 0 R 7 0 R] /Count 3 >>"
    inner = "<< /Type /Pages /Parent 2 0 R /Kids [2 0 R 7 0 R] /Count 2 >>"
    write("loops.pdf", [catalog, loop, PAGE % "/XObject << /X 6 0 R >>", stream(SHOW % "Before the loop." + " /X Do"), FONT, form, inner])
    # Forms that each draw the next one twice, thirty deep: 2^30 texts without a bound.
    bomb = [catalog, pages, PAGE % "/XObject << /X 6 0 R >>", stream(SHOW % "Before the bomb." + " /X Do"), FONT]
    for level in range(30):
        inner = f"/XObject << /X {7 + level} 0 R >>" if level < 29 else ""
        bomb.append(stream("/X Do /X Do", f"/Type /XObject /Subtype /Form /BBox [0 0 595 842] /Resources << {inner} >>"))
    write("form-bomb.pdf", bomb)
    write("deep.pdf", [catalog, pages, PAGE % "", deflated("[" * 100_000 + SHOW % "Below a deep array."), FONT])
    layers = "<< /Type /Catalog /Pages 2 0 R /OCProperties << /OCGs [6 0 R 7 0 R] /D << /OFF [7 0 R] >> >> >>"
    marked = "/OC /On BDC " + SHOW % "In a layer that is on." + " EMC /OC /Off BDC BT /F 12 Tf 60 650 Td (In a layer that is off.) Tj ET EMC"
    write("layers.pdf", [layers, pages, PAGE % "/Properties << /On 6 0 R /Off 7 0 R >>", stream(marked), FONT, "<< /Type /OCG /Name (On) >>", "<< /Type /OCG /Name (Off) >>"])
    actual = "BT /F 12 Tf 60 700 Td (Read ) Tj /Span << /ActualText (this) >> BDC (xyz) Tj EMC ( instead.) Tj ET /Artifact BMC BT /F 8 Tf 60 20 Td (Printed by a robot) Tj ET EMC"
    write("actual-text.pdf", [catalog, pages, PAGE % "", stream(actual), FONT])
    bad_page = "<< /Type /Pages /Kids [3 0 R 6 0 R] /Count 2 >>"
    no_content = "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Contents 99 0 R >>"
    write("missing-content.pdf", [catalog, bad_page, PAGE % "", stream(SHOW % "The next page has lost its content."), FONT, no_content])
    (folder / "not-a-pdf.pdf").write_bytes(b"%PDF-1.7\nThis is no more than a header.\n")
    (folder / "empty.pdf").write_bytes(b"")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    columns(folder / "columns.pdf")
    aligned_table(folder / "aligned-table.pdf")
    right_to_left(folder / "right-to-left.pdf")
    right_to_left_mixed(folder / "right-to-left-mixed.pdf")
    rotated(folder / "rotated.pdf")
    hidden(folder / "hidden.pdf")
    scans(folder / "scans.pdf")
    encrypted(folder / "user-password.pdf", "secret")
    encrypted(folder / "owner-password.pdf", "")
    raw_files(folder)


if __name__ == "__main__":
    main()
