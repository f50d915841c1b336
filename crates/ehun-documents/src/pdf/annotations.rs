//! What annotations look like: form fields, free text and stamps have their appearance in a form of their own.

use hayro_font::kurbo::{Affine, Rect};
use hayro_syntax::object::{Dict, Name, Object, Stream};

/// The form that shows an annotation in its present state.
pub(super) fn appearance<'a>(annotation: &Dict<'a>) -> Option<Stream<'a>> {
    match annotation.get::<Dict<'a>>("AP")?.get::<Object<'a>>("N")? {
        Object::Stream(stream) => Some(stream),
        Object::Dict(states) => {
            let state = annotation.get::<Name<'a>>("AS")?;
            states.get::<Stream<'a>>(state.as_ref())
        }
        _ => None,
    }
}

/// Where an appearance lies on its page (ISO 32000-1, 12.5.5), for a form whose own matrix is applied later.
pub(super) fn appearance_transform(form: &Stream<'_>, rect: [f64; 4]) -> Affine {
    let bbox = form.dict().get::<[f64; 4]>("BBox").unwrap_or([0.0, 0.0, 1.0, 1.0]);
    let matrix = Affine::new(form.dict().get::<[f64; 6]>("Matrix").unwrap_or([1.0, 0.0, 0.0, 1.0, 0.0, 0.0]));
    let sorted = |r: [f64; 4]| Rect::from_points((r[0], r[1]), (r[2], r[3]));
    let (from, to) = (matrix.transform_rect_bbox(sorted(bbox)), sorted(rect));
    let ratio = |to: f64, from: f64| if from.abs() > 1e-9 { to / from } else { 1.0 };
    let (sx, sy) = (ratio(to.width(), from.width()), ratio(to.height(), from.height()));
    Affine::new([sx, 0.0, 0.0, sy, to.x0 - sx * from.x0, to.y0 - sy * from.y0])
}
