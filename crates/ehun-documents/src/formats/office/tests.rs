use std::io::Write;

use super::*;
use crate::formats::ParseOptions;
use crate::model::{BlockKind, Document, HiddenReason, Layer, PageStatus};

/// A ZIP file of these parts.
fn package(parts: &[(&str, &str)]) -> Vec<u8> {
    let mut writer = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    for (name, content) in parts {
        writer.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(content.as_bytes()).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

fn parse(parts: &[(&str, &str)]) -> Document {
    let document = crate::parse(&package(parts), &ParseOptions::default()).unwrap();
    document.check().unwrap();
    document
}

/// A presentation of one slide, `ppt/slides/a.xml`, and of `more` parts.
fn one_slide(slide: &str, more: &[(&str, &str)]) -> Document {
    let presentation = "<p:presentation><p:sldIdLst><p:sldId id='1' r:id='s'/></p:sldIdLst></p:presentation>";
    let (root, slides) =
        (relations(&[("r1", "officeDocument", "ppt/presentation.xml")]), relations(&[("s", "slide", "slides/a.xml")]));
    let parts = [
        ("[Content_Types].xml", ""),
        ("_rels/.rels", &root),
        ("ppt/presentation.xml", presentation),
        ("ppt/_rels/presentation.xml.rels", &slides),
        ("ppt/slides/a.xml", slide),
    ];
    parse(&[&parts, more].concat())
}

/// Kind, layer and text of each block, in words.
fn seen(document: &Document) -> Vec<String> {
    let blocks = document.blocks.iter();
    blocks
        .map(|b| {
            let kind = format!("{:?}", b.kind);
            let kind = kind.split([' ', '(']).next().unwrap_or_default().to_owned();
            let layer = match b.layer {
                Layer::Body => String::new(),
                other => format!(" {other:?}"),
            };
            format!("{kind}{layer}: {}", document.block_text(b))
        })
        .collect()
}

const OFFICE: &str = "http://schemas.openxmlformats.org/officeDocument/2006/relationships";

fn relations(entries: &[(&str, &str, &str)]) -> String {
    let entries = entries
        .iter()
        .map(|(id, kind, target)| format!("<Relationship Id='{id}' Type='{OFFICE}/{kind}' Target='{target}'/>"));
    format!("<Relationships>{}</Relationships>", entries.collect::<String>())
}

#[test]
fn docx_with_everything_around_the_body() {
    let body = "<w:document><w:body>
        <w:p><w:pPr><w:pStyle w:val='Own'/></w:pPr><w:r><w:t>Head</w:t></w:r></w:p>
        <w:p><w:r><w:t xml:space='preserve'>Text </w:t></w:r><w:ins><w:r><w:t>added</w:t></w:r></w:ins>
            <w:del><w:r><w:delText>removed</w:delText></w:r></w:del>
            <w:r><w:footnoteReference w:id='3'/></w:r>
            <w:r><mc:AlternateContent><mc:Choice><w:drawing><wps:txbx><w:txbxContent><w:p><w:r><w:t>In a box</w:t></w:r></w:p>
            </w:txbxContent></wps:txbx></w:drawing></mc:Choice><mc:Fallback><w:pict><v:textbox><w:txbxContent><w:p><w:r>
            <w:t>In a box</w:t></w:r></w:p></w:txbxContent></v:textbox></w:pict></mc:Fallback></mc:AlternateContent></w:r>
            <w:r><w:fldChar w:fldCharType='begin'/><w:instrText>PAGE</w:instrText></w:r></w:p>
        <w:sdt><w:sdtContent><w:p><w:r><w:t>Controlled</w:t><w:tab/><w:t>text</w:t></w:r></w:p></w:sdtContent></w:sdt>
        <w:tbl><w:tr><w:tc><w:p><w:r><w:t>a</w:t></w:r></w:p></w:tc><w:tc><w:p><w:r><w:t>b</w:t></w:r></w:p><w:p><w:r>
            <w:t>c</w:t></w:r></w:p></w:tc></w:tr></w:tbl>
        </w:body></w:document>";
    let styles = "<w:styles><w:style w:styleId='Own'><w:name w:val='Mine'/><w:basedOn w:val='H'/></w:style>
        <w:style w:styleId='H'><w:name w:val='heading 2'/></w:style></w:styles>";
    let notes = "<w:footnotes><w:footnote w:type='separator' w:id='0'><w:p/></w:footnote><w:footnote w:id='3'><w:p><w:r>
        <w:t>The note</w:t></w:r></w:p></w:footnote><w:footnote w:id='4'><w:p><w:r><w:t>Stray</w:t></w:r></w:p></w:footnote>
        </w:footnotes>";
    let header = "<w:hdr><w:p><w:r><w:t>Running</w:t></w:r></w:p></w:hdr>";
    let document = parse(&[
        ("[Content_Types].xml", ""),
        ("_rels/.rels", &relations(&[("r1", "officeDocument", "word/document.xml")])),
        (
            "word/_rels/document.xml.rels",
            &relations(&[
                ("a", "styles", "styles.xml"),
                ("b", "footnotes", "footnotes.xml"),
                ("c", "header", "header1.xml"),
                ("d", "header", "header2.xml"),
            ]),
        ),
        ("word/document.xml", body),
        ("word/styles.xml", styles),
        ("word/footnotes.xml", notes),
        ("word/header1.xml", header),
        ("word/header2.xml", header),
    ]);
    assert_eq!(
        seen(&document),
        [
            "PageHeader: Running",
            "Heading: Head",
            "Paragraph: Text added",
            "Paragraph Hidden(Deleted): removed",
            "Paragraph: In a box",
            "Footnote: The note",
            "Paragraph: Controlled\ttext",
            "Table: a\tb c",
            "Footnote Unplaced: Stray",
        ]
    );
}

#[test]
fn pptx() {
    let shape = |role: &str, text: &str| {
        format!(
            "<p:sp><p:nvSpPr><p:nvPr><p:ph type='{role}'/></p:nvPr></p:nvSpPr><p:spPr><a:xfrm><a:off x='12700' y='25400'/>
            <a:ext cx='127000' cy='12700'/></a:xfrm></p:spPr><p:txBody><a:p><a:r><a:t>{text}</a:t></a:r></a:p></p:txBody></p:sp>"
        )
    };
    let slide =
        |show: &str, shapes: &str| format!("<p:sld {show}><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>");
    let document = parse(&[
        ("[Content_Types].xml", ""),
        ("_rels/.rels", &relations(&[("r1", "officeDocument", "ppt/presentation.xml")])),
        (
            "ppt/presentation.xml",
            "<p:presentation><p:sldIdLst><p:sldId id='256' r:id='s2'/><p:sldId id='257' r:id='s1'/><p:sldId id='258' r:id='x'/>
            </p:sldIdLst><p:sldSz cx='9144000' cy='6858000'/></p:presentation>",
        ),
        (
            "ppt/_rels/presentation.xml.rels",
            &relations(&[("s1", "slide", "slides/a.xml"), ("s2", "slide", "slides/b.xml"), ("x", "slide", "gone.xml")]),
        ),
        ("ppt/slides/a.xml", &slide("show='0'", &shape("body", "Not shown"))),
        ("ppt/slides/b.xml", &slide("", &(shape("body", "Point") + &shape("title", "Title") + &shape("sldNum", "1")))),
        ("ppt/slides/_rels/b.xml.rels", &relations(&[("n", "notesSlide", "../notes/n.xml")])),
        ("ppt/notes/n.xml", "<p:notes><a:p><a:r><a:t>Say this</a:t></a:r></a:p></p:notes>"),
    ]);
    assert_eq!(
        seen(&document),
        [
            "Heading: Title",
            "ListItem: Point",
            "PageFooter: 1",
            "Footnote: Say this",
            "ListItem Hidden(Marked): Not shown"
        ]
    );
    let bbox = document.blocks[0].bbox.unwrap();
    assert_eq!((bbox.x0, bbox.y0, bbox.x1, bbox.y1), (1.0, 2.0, 11.0, 3.0));
    assert_eq!((document.pages[0].width, document.pages.len()), (720.0, 3));
    assert!(matches!(document.pages[2].status, PageStatus::Failed { .. }));
}

#[test]
fn xlsx() {
    let sheet = "<worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'><sheetData>
        <row r='1'><c r='A1' t='inlineStr'><is><t>Name</t></is></c><c r='B1' t='inlineStr'><is><t>Sum</t></is></c></row>
        <row r='3'><c r='A3' t='inlineStr'><is><t>Ann</t></is></c><c r='B3'><f>1+1</f><v>2</v></c></row>
        </sheetData></worksheet>";
    let main = "<workbook xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main' xmlns:r='http://schemas.openxmlformats.org/officeDocument/2006/relationships'><sheets>
        <sheet name='First' sheetId='1' r:id='s1'/><sheet name='Second' sheetId='2' state='hidden' r:id='s2'/></sheets></workbook>";
    let document = parse(&[
        ("[Content_Types].xml", "<Types/>"),
        ("_rels/.rels", &relations(&[("r1", "officeDocument", "xl/workbook.xml")])),
        ("xl/workbook.xml", main),
        (
            "xl/_rels/workbook.xml.rels",
            &relations(&[("s1", "worksheet", "worksheets/1.xml"), ("s2", "worksheet", "worksheets/2.xml")]),
        ),
        ("xl/worksheets/1.xml", sheet),
        ("xl/worksheets/2.xml", sheet),
    ]);
    let table = "Name\tSum\nAnn\t2";
    let hidden = format!("{:?}", Layer::Hidden(HiddenReason::LayerOff));
    assert_eq!(
        seen(&document),
        [
            "Heading: First".to_owned(),
            format!("Table: {table}"),
            format!("Heading {hidden}: Second"),
            format!("Table {hidden}: {table}")
        ]
    );
}

#[test]
fn opendocument() {
    let content = "<office:document-content><office:body><office:text>
        <text:tracked-changes><text:changed-region><text:deletion><text:p>gone</text:p></text:deletion></text:changed-region>
        </text:tracked-changes>
        <text:h text:outline-level='2'>Head</text:h>
        <text:p>One<text:s text:c='2'/>two<text:note><text:note-citation>1</text:note-citation><text:note-body><text:p>Note</text:p>
        </text:note-body></text:note></text:p>
        <text:list><text:list-item><text:p>item</text:p><text:list><text:list-item><text:p>inner</text:p></text:list-item>
        </text:list></text:list-item></text:list>
        <table:table><table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell
        table:number-columns-repeated='16000'/></table:table-row></table:table>
        </office:text></office:body></office:document-content>";
    let document = parse(&[
        ("mimetype", ODT),
        ("content.xml", content),
        ("meta.xml", "<m><dc:title>T</dc:title></m>"),
        ("styles.xml", "<s><style:footer><text:p>Foot</text:p></style:footer></s>"),
    ]);
    assert_eq!(
        seen(&document),
        [
            "PageFooter: Foot",
            "Paragraph Hidden(Deleted): gone",
            "Heading: Head",
            "Paragraph: One  two",
            "Footnote: Note",
            "ListItem: item",
            "ListItem: inner",
            "Table: a",
        ]
    );
    assert_eq!(document.blocks[6].kind, BlockKind::ListItem { depth: 1 });
    assert_eq!(document.metadata.title.as_deref(), Some("T"));
}

#[test]
fn epub() {
    let document = parse(&[
        ("mimetype", "application/epub+zip"),
        ("META-INF/container.xml", "<container><rootfiles><rootfile full-path='OPS/p.opf'/></rootfiles></container>"),
        (
            "OPS/p.opf",
            "<package><metadata><dc:title>Book</dc:title></metadata><manifest><item id='a' href='a%20b.xhtml'/>
            <item id='b' href='missing.xhtml'/></manifest><spine><itemref idref='a'/><itemref idref='b'/></spine></package>",
        ),
        ("OPS/a b.xhtml", "<html><body><h1>One</h1><p>Text.</p></body></html>"),
    ]);
    assert_eq!(seen(&document), ["Heading: One", "Paragraph: Text."]);
    assert_eq!(document.blocks[1].page, Some(1));
    assert!(matches!(document.pages[1].status, PageStatus::Failed { .. }));
}

#[test]
fn bombs_in_office_files() {
    let deep = "<w:document><w:body>".to_owned() + &"<w:sdt>".repeat(100_000);
    let zeros = "0".repeat(64 << 20);
    for parts in [
        [("[Content_Types].xml", ""), ("word/document.xml", deep.as_str())],
        [("[Content_Types].xml", ""), ("word/document.xml", zeros.as_str())],
        [("[Content_Types].xml", ""), ("xl/workbook.xml", zeros.as_str())],
    ] {
        let error = crate::parse(&package(&parts), &ParseOptions::default()).unwrap_err();
        assert_eq!(error.code(), "limit_exceeded", "{error}");
    }
}

/// A DOCX file with this body and these styles.
fn docx_of(body: &str, styles: &str) -> Document {
    parse(&[
        ("[Content_Types].xml", ""),
        ("_rels/.rels", &relations(&[("r1", "officeDocument", "word/document.xml")])),
        (
            "word/_rels/document.xml.rels",
            &relations(&[("a", "styles", "styles.xml"), ("b", "aFChunk", "part.html"), ("c", "chart", "chart.xml")]),
        ),
        ("word/document.xml", &format!("<w:document><w:body>{body}</w:body></w:document>")),
        ("word/styles.xml", &format!("<w:styles>{styles}</w:styles>")),
        ("word/part.html", "<p>A chunk of another kind</p>"),
        ("word/chart.xml", "<c:chart><a:p><a:r><a:t>Axis</a:t></a:r></a:p></c:chart>"),
    ])
}

#[test]
fn docx_text_that_nobody_sees() {
    let run = |properties: &str, text: &str| format!("<w:r><w:rPr>{properties}</w:rPr><w:t>{text}</w:t></w:r>");
    let paragraph = |properties: &str, runs: &str| format!("<w:p><w:pPr>{properties}</w:pPr>{runs}</w:p>");
    let cell = |text: &str| format!("<w:tc>{}</w:tc>", paragraph("", &run("<w:color w:val='FFFFFF'/>", text)));
    let body = [
        paragraph("", &(run("", "seen ") + &run("<w:rStyle w:val='Own'/>", "by style"))),
        paragraph("", &run("<w:rStyle w:val='Own'/><w:vanish w:val='0'/>", "seen against its style")),
        paragraph("<w:pStyle w:val='Para'/>", &run("<w:b/>", "whole paragraph")),
        paragraph("", &run("<w:color w:val='FFFFFF'/>", "white")),
        paragraph("", &run("<w:color w:val='FFFFFF'/><w:shd w:val='clear' w:fill='000000'/>", "white on black")),
        paragraph("<w:shd w:val='clear' w:fill='1F3864'/>", &run("<w:color w:val='FFFFFF'/>", "white on blue")),
        paragraph("", &run("<w:sz w:val='1'/>", "dot")),
        format!(
            "<w:tbl><w:tr>{}{}</w:tr><w:tr><w:trPr><w:del/></w:trPr>{}</w:tr></w:tbl>",
            cell("a"),
            cell("b"),
            cell("row taken out")
        ),
    ]
    .concat();
    let styles = "<w:style w:styleId='Own'><w:basedOn w:val='Base'/></w:style><w:style w:styleId='Base'><w:rPr><w:vanish/></w:rPr>
        </w:style><w:style w:styleId='Para'><w:rPr><w:vanish/></w:rPr></w:style>";
    let document = docx_of(&body, styles);
    assert_eq!(
        seen(&document),
        [
            "Paragraph: seen",
            "Paragraph Hidden(Marked): by style",
            "Paragraph: seen against its style",
            "Paragraph Hidden(Marked): whole paragraph",
            "Paragraph Hidden(SameColour): white",
            "Paragraph: white on black",
            "Paragraph: white on blue",
            "Paragraph Hidden(ZeroSize): dot",
            "Table: a\tb",
            "Paragraph Hidden(Deleted): row taken out",
            "Paragraph Unplaced: Axis",
        ]
    );
    assert_eq!(document.children.len(), 1);
    assert_eq!(document.children[0].name, "part.html");
}

#[test]
fn pptx_boxes_of_groups_are_boxes_of_the_slide() {
    let frame = |kind: &str, x: u32, y: u32, cx: u32, cy: u32, inner: &str| {
        let point = 12_700;
        format!(
            "<p:{kind}><a:xfrm><a:off x='{}' y='{}'/><a:ext cx='{}' cy='{}'/>{inner}</a:xfrm></p:{kind}>",
            x * point,
            y * point,
            cx * point,
            cy * point
        )
    };
    // Half as large as its own coordinates, from 100 on.
    let inner = "<a:chOff x='1270000' y='0'/><a:chExt cx='1270000' cy='1270000'/>";
    let shape = frame("spPr", 120, 40, 20, 10, "") + "<p:txBody><a:p><a:r><a:t>In a group</a:t></a:r></a:p></p:txBody>";
    let group = |content: &str| format!("<p:grpSp>{}{content}</p:grpSp>", frame("grpSpPr", 10, 20, 50, 50, inner));
    let shapes = group(&format!("<p:sp>{shape}</p:sp>"));
    let document = one_slide(&format!("<p:sld><p:cSld><p:spTree>{shapes}</p:spTree></p:cSld></p:sld>"), &[]);
    let bbox = document.blocks[0].bbox.unwrap();
    assert_eq!([bbox.x0, bbox.y0, bbox.x1, bbox.y1], [20.0, 40.0, 30.0, 45.0]);
}

#[test]
fn pptx_is_read_by_position_not_by_order_of_drawing() {
    let transform = |x: u32, y: u32, cx: u32, cy: u32| {
        let [x, y, cx, cy] = [x, y, cx, cy].map(|points| points * 12_700);
        format!("<p:spPr><a:xfrm><a:off x='{x}' y='{y}'/><a:ext cx='{cx}' cy='{cy}'/></a:xfrm></p:spPr>")
    };
    let shape = |holder: &str, properties: &str, text: &str| {
        format!(
            "<p:sp><p:nvSpPr><p:nvPr>{holder}</p:nvPr></p:nvSpPr>{properties}<p:txBody><a:p><a:r><a:t>{text}</a:t></a:r>
            </a:p></p:txBody></p:sp>"
        )
    };
    let part = |root: &str, shapes: &[String]| {
        format!("<p:{root}><p:cSld><p:spTree>{}</p:spTree></p:cSld></p:{root}>", shapes.concat())
    };
    let slide = part(
        "sld",
        &[
            shape("<p:ph type='sldNum' idx='12'/>", "", "7"),
            shape("", &transform(480, 160, 200, 100), "Right text"),
            // By its index, the left column of the layout; by its type the master's body.
            shape("<p:ph idx='1'/>", "<p:spPr/>", "Left text"),
            shape("", &transform(480, 120, 200, 38), "Right heading"),
            shape("<p:ph type='body' idx='9'/>", "<p:spPr/>", "Left heading"),
            shape("", &transform(40, 300, 640, 30), "Below both"),
            shape("<p:ph type='title'/>", "", "Title"),
        ],
    );
    let layout = part(
        "sldLayout",
        &[
            shape("<p:ph type='title'/>", "", "Click"),
            shape("<p:ph idx='1'/>", &transform(40, 160, 200, 100), "Click"),
            shape("<p:ph type='body' idx='9'/>", &transform(40, 120, 200, 38), "Click"),
        ],
    );
    let master = part("sldMaster", &[shape("<p:ph type='title'/>", &transform(40, 20, 640, 60), "Click")]);
    let document = one_slide(
        &slide,
        &[
            ("ppt/slides/_rels/a.xml.rels", &relations(&[("l", "slideLayout", "../layouts/l.xml")])),
            ("ppt/layouts/l.xml", &layout),
            ("ppt/layouts/_rels/l.xml.rels", &relations(&[("m", "slideMaster", "../m.xml")])),
            ("ppt/m.xml", &master),
        ],
    );
    assert_eq!(
        seen(&document),
        [
            "Heading: Title",
            "ListItem: Left heading",
            "ListItem: Left text",
            "Paragraph: Right heading",
            "Paragraph: Right text",
            "Paragraph: Below both",
            "PageFooter: 7",
        ]
    );
    assert_eq!(document.blocks[0].bbox.map(|b| [b.x0, b.y0, b.x1, b.y1]), Some([40.0, 20.0, 680.0, 80.0]));
}

#[test]
fn sheets_far_apart_hidden_and_with_margins() {
    let sheet = "<worksheet xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main'>
        <cols><col min='2' max='2' hidden='1'/></cols><sheetData>
        <row r='1'><c r='A1' t='inlineStr'><is><t>Name</t></is></c><c r='B1' t='inlineStr'><is><t>Secret</t></is></c></row>
        <row r='2' hidden='1'><c r='A2' t='inlineStr'><is><t>Gone</t></is></c></row>
        <row r='1048576'><c r='A1048576' t='inlineStr'><is><t>Low</t></is></c><c r='XFD1048576'><v>7</v></c></row>
        </sheetData><headerFooter><oddFooter>&amp;CPage of &amp;N</oddFooter></headerFooter></worksheet>";
    let main = "<workbook xmlns='http://schemas.openxmlformats.org/spreadsheetml/2006/main' xmlns:r='http://schemas.openxmlformats.org/officeDocument/2006/relationships'><sheets>
        <sheet name='First' sheetId='1' r:id='s1'/></sheets></workbook>";
    let document = parse(&[
        ("[Content_Types].xml", "<Types/>"),
        ("_rels/.rels", &relations(&[("r1", "officeDocument", "xl/workbook.xml")])),
        ("xl/workbook.xml", main),
        ("xl/_rels/workbook.xml.rels", &relations(&[("s1", "worksheet", "worksheets/1.xml")])),
        ("xl/worksheets/1.xml", sheet),
        (
            "xl/worksheets/_rels/1.xml.rels",
            &relations(&[("c", "comments", "../comments1.xml"), ("d", "drawing", "../d.xml")]),
        ),
        (
            "xl/comments1.xml",
            "<comments><commentList><comment ref='A1'><text><r><t>Who?</t></r></text></comment></commentList></comments>",
        ),
        (
            "xl/d.xml",
            "<xdr:wsDr><xdr:sp><xdr:txBody><a:p><a:r><a:t>Boxed</a:t></a:r></a:p></xdr:txBody></xdr:sp></xdr:wsDr>",
        ),
    ]);
    assert_eq!(
        seen(&document),
        [
            "Heading: First",
            "Table: Name\nLow\t7",
            "Table Hidden(Marked): \tSecret\nGone",
            "PageFooter: Page of",
            "Footnote: Who?",
            "Paragraph Unplaced: Boxed",
        ]
    );
}

#[test]
fn opendocument_text_that_is_not_shown() {
    let content = "<office:document-content><office:automatic-styles><style:style style:name='T1' style:family='text'>
        <style:text-properties text:display='none'/></style:style></office:automatic-styles><office:body><office:text>
        <text:p>one <text:span text:style-name='T1'>two</text:span> three<text:hidden-text text:string-value='four'
        text:is-hidden='true'/><text:hidden-text text:string-value=' five' text:is-hidden='false'/></text:p>
        <text:section text:display='none'><text:p>six</text:p></text:section>
        </office:text></office:body></office:document-content>";
    let document = parse(&[("mimetype", ODT), ("content.xml", content)]);
    assert_eq!(
        seen(&document),
        ["Paragraph: one three five", "Paragraph Hidden(Marked): twofour", "Paragraph Hidden(Marked): six"]
    );
}

#[test]
fn odp_is_read_by_position_not_by_order_of_drawing() {
    let paragraph = |text: &str| format!("<text:p>{text}</text:p>");
    let at = |x: f32, y: f32, width: f32, height: f32| {
        format!("svg:x='{x}cm' svg:y='{y}cm' svg:width='{width}cm' svg:height='{height}cm'")
    };
    let frame = |attributes: &str, text: &str| {
        format!("<draw:frame {attributes}><draw:text-box>{}</draw:text-box></draw:frame>", paragraph(text))
    };
    let shape = |attributes: &str, text: &str| {
        format!("<draw:custom-shape {attributes}>{}</draw:custom-shape>", paragraph(text))
    };
    let slide = [
        frame(&format!("presentation:class='page-number' {}", at(24., 19., 3., 1.)), "7"),
        frame(&at(15., 6., 8., 4.), "Right text"),
        frame(&at(2., 6., 8., 4.), "Left text"),
        // A group stands where its members do; within it the upper one is first.
        format!("<draw:g>{}{}</draw:g>", shape(&at(15., 5.2, 8., 0.6), "Second"), shape(&at(15., 4.4, 8., 0.7), "First")),
        // A quarter turn against the clock about the corner at 2, 17: from 13 to 17 down.
        shape("svg:width='4cm' svg:height='1cm' draw:transform='rotate (1.5707963) translate (2cm 17cm)'", "Turned"),
        shape(&format!("draw:display='none' {}", at(15., 14., 4., 1.)), "Unseen"),
        frame(&at(2., 4.6, 8., 1.2), "Left heading"),
        // Where its master has it.
        frame("presentation:class='title'", "Title"),
        "<presentation:notes><draw:frame presentation:class='notes'><draw:text-box><text:p>Say this</text:p><text:p>And that</text:p>
            </draw:text-box></draw:frame><draw:frame presentation:class='page-number'><draw:text-box><text:p>1</text:p>
            </draw:text-box></draw:frame></presentation:notes>".to_owned(),
    ]
    .concat();
    let content = format!(
        "<office:document-content><office:automatic-styles><style:style style:name='dp2'><style:drawing-page-properties
        presentation:visibility='hidden'/></style:style></office:automatic-styles><office:body><office:presentation>
        <draw:page draw:master-page-name='Plain'>{slide}</draw:page>
        <draw:page draw:master-page-name='Plain' draw:style-name='dp2'>{}</draw:page>
        <draw:page><draw:frame><draw:image/></draw:frame></draw:page>
        </office:presentation></office:body></office:document-content>",
        frame(&at(1., 1., 1., 1.), "Not shown")
    );
    let styles = format!(
        "<office:document-styles><style:page-layout style:name='PM1'><style:page-layout-properties fo:page-width='28cm'
        fo:page-height='210mm'/></style:page-layout><style:master-page style:name='Plain' style:page-layout-name='PM1'>
        <draw:frame presentation:class='title' {}/></style:master-page></office:document-styles>",
        at(1., 1., 26., 2.)
    );
    let document = parse(&[("mimetype", ODP), ("content.xml", &content), ("styles.xml", &styles)]);
    assert_eq!(
        seen(&document),
        [
            "Heading: Title",
            "Paragraph: Left heading",
            "Paragraph: Left text",
            "Paragraph: First",
            "Paragraph: Second",
            "Paragraph: Right text",
            "Paragraph: Turned",
            "Paragraph Hidden(Marked): Unseen",
            "PageFooter: 7",
            "Footnote: Say this",
            "Footnote: And that",
            "Paragraph Hidden(Marked): Not shown",
        ]
    );
    let centimetres = |text: &str| {
        let block = document.blocks.iter().find(|b| document.block_text(b) == text).unwrap();
        let bbox = block.bbox.unwrap();
        [bbox.x0, bbox.y0, bbox.x1, bbox.y1].map(|points| (points / 72.0 * 2.54 * 10.0).round() / 10.0)
    };
    assert_eq!(centimetres("Title"), [1., 1., 27., 3.]);
    assert_eq!(centimetres("Turned"), [2., 13., 3., 17.]);
    assert_eq!(centimetres("First"), [15., 4.4, 23., 5.1]);
    let pages: Vec<_> =
        document.pages.iter().map(|page| (page.width.round(), page.height.round(), &page.status)).collect();
    let (text, scan) = (crate::PageStatus::Text, crate::PageStatus::NeedsOcr);
    assert_eq!(pages, [(794., 595., &text), (794., 595., &text), (0., 0., &scan)]);
}

#[test]
fn pptx_text_in_the_colour_of_what_is_behind_it() {
    let srgb = |value: &str| format!("<a:solidFill><a:srgbClr val='{value}'/></a:solidFill>");
    let scheme = |value: &str| format!("<a:solidFill><a:schemeClr val='{value}'/></a:solidFill>");
    let shade = "<a:solidFill><a:schemeClr val='bg1'><a:lumMod val='75000'/></a:schemeClr></a:solidFill>";
    let run = |colour: &str, text: &str| format!("<a:r><a:rPr>{colour}</a:rPr><a:t>{text}</a:t></a:r>");
    let sp = |y: u32, fill: &str, more: &str, runs: &str| {
        let (y, height) = (y * 12_700, 10 * 12_700);
        format!(
            "<p:sp>{more}<p:spPr><a:xfrm><a:off x='0' y='{y}'/><a:ext cx='1270000' cy='{height}'/></a:xfrm>{fill}</p:spPr>
            <p:txBody><a:p>{runs}</a:p></p:txBody></p:sp>"
        )
    };
    let white = srgb("ffffff");
    let shapes = [
        sp(0, "", "", &(run(&white, "white on the slide") + &run("", "black beside it"))),
        sp(20, "", "", &run(&scheme("bg1"), "the scheme's white")),
        sp(40, "", "", &run(shade, "a shade of it")),
        sp(60, &srgb("000080"), "", &run(&white, "white on blue")),
        sp(80, &srgb("000080"), "", &run(&srgb("000080"), "blue on blue")),
        sp(100, "<a:gradFill/>", "", &run(&white, "white on a gradient")),
        // A dark box without words, and a text over it.
        sp(120, &srgb("000000"), "", ""),
        sp(125, "", "", &run(&white, "white over a box")),
        sp(140, "", "<p:style><a:fillRef idx='1'/></p:style>", &run(&white, "filled by the theme")),
        sp(160, "", "", &run(&format!("<a:ln>{}</a:ln>{white}", srgb("000000")), "outlined")),
        // The layout has a band there.
        sp(205, "", "", &run(&white, "white on the band")),
        format!("<p:grpSp>{}</p:grpSp>", sp(300, "", "", &run(&white, "in a group"))),
    ];
    let part = |root: &str, ground: &str, shapes: &str, rest: &str| {
        format!("<p:{root}><p:cSld>{ground}<p:spTree>{shapes}</p:spTree></p:cSld>{rest}</p:{root}>")
    };
    let layout = part("sldLayout", "", &sp(200, &srgb("202020"), "", ""), "");
    let map = "<p:clrMap bg1='lt1' tx1='dk1' bg2='lt2' tx2='dk2'/>";
    let master = |ground: &str| part("sldMaster", ground, "", map);
    let theme = "<a:theme><a:themeElements><a:clrScheme><a:dk1><a:srgbClr val='000000'/></a:dk1><a:lt1><a:sysClr val='window'
        lastClr='FFFFFF'/></a:lt1></a:clrScheme><a:fmtScheme><a:bgFillStyleLst><a:solidFill><a:schemeClr val='phClr'/></a:solidFill>
        <a:gradFill/><a:gradFill/></a:bgFillStyleLst></a:fmtScheme></a:themeElements></a:theme>";
    let unseen = |ground: &str, slide_ground: &str| {
        let slide = part("sld", slide_ground, &shapes.concat(), "");
        let document = one_slide(
            &slide,
            &[
                ("ppt/slides/_rels/a.xml.rels", &relations(&[("l", "slideLayout", "../layouts/l.xml")])),
                ("ppt/layouts/l.xml", &layout),
                ("ppt/layouts/_rels/l.xml.rels", &relations(&[("m", "slideMaster", "../m.xml")])),
                ("ppt/m.xml", &master(ground)),
                ("ppt/_rels/m.xml.rels", &relations(&[("t", "theme", "t.xml")])),
                ("ppt/t.xml", theme),
            ],
        );
        let hidden: Vec<String> = seen(&document).into_iter().filter(|line| line.contains("Hidden")).collect();
        for text in ["black beside it", "white over a box", "in a group", "white on the band"] {
            assert!(document.text.contains(text), "{text}");
        }
        assert!(hidden.iter().all(|line| line.starts_with("Paragraph Hidden(SameColour): ")), "{hidden:?}");
        hidden.iter().map(|line| line.split_once(": ").unwrap().1.to_owned()).collect::<Vec<_>>()
    };
    let on_white = ["white on the slide", "the scheme's white", "blue on blue"];
    let reference = |index: &str| format!("<p:bg><p:bgRef idx='{index}'><a:schemeClr val='bg1'/></p:bgRef></p:bg>");
    let plain = |colour: &str| format!("<p:bg><p:bgPr>{}</p:bgPr></p:bg>", srgb(colour));
    assert_eq!(unseen("", ""), on_white);
    assert_eq!(unseen(&reference("1001"), ""), on_white);
    assert_eq!(unseen(&reference("1002"), ""), ["blue on blue"]);
    assert_eq!(unseen(&plain("102030"), ""), ["blue on blue"]);
    assert_eq!(unseen(&plain("102030"), &plain("FFFFFF")), on_white);
    assert_eq!(unseen("", "<p:bg><p:bgPr><a:blipFill/></p:bgPr></p:bg>"), ["blue on blue"]);
}
