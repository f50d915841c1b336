//! Stages and memory.
//!
//! Between the places where rows meet (attention, pooling) every operation works row by row. So a run of such steps is
//! one **stage**, and a thread takes a block of rows through all of it: what the steps hand to each other stays in the
//! thread's cache and is never as large as the batch. Only values that another stage reads have memory for the whole
//! batch, a **slot** of the arena, which is given to another value when its last reader has run.

use ehun_graph::Rows;

use super::ir::{Ir, IrOp, Value};

/// Steps that run together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Stage {
    /// Row by row, on blocks of rows of this kind.
    Rows { rows: Rows, steps: Vec<usize> },
    /// One step in which rows meet.
    Meeting(usize),
}

impl Stage {
    /// Places of the steps.
    pub(crate) fn steps(&self) -> &[usize] {
        match self {
            Self::Rows { steps, .. } => steps,
            Self::Meeting(step) => std::slice::from_ref(step),
        }
    }
}

/// Where a value lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Nowhere: nothing computes or reads it.
    None,
    /// Not computed by these steps: constant rows.
    Constant,
    /// A slot of the arena.
    Arena(usize),
    /// A slot of the thread's scratch, for the block at hand.
    Local(usize),
}

/// A slot of the arena.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// What its rows are; slots of token rows and of sequence rows are never exchanged.
    pub(crate) rows: Rows,
    /// Values for each row.
    pub(crate) stride: usize,
}

/// When what runs, and where values lie.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Schedule {
    pub(crate) stages: Vec<Stage>,
    /// For each value that is no view.
    pub(crate) places: Vec<Place>,
    pub(crate) arena: Vec<Slot>,
    /// For each stage, the values per row of each scratch slot.
    pub(crate) local: Vec<Vec<usize>>,
}

impl Schedule {
    /// Values of scratch that one row of a block takes in `stage`.
    pub(crate) fn local_width(&self, stage: usize) -> usize {
        self.local[stage].iter().sum()
    }

    /// Bytes of the arena for a batch.
    pub(crate) fn arena_bytes(&self, tokens: usize, sequences: usize) -> usize {
        self.arena.iter().map(|slot| slot.stride * count(slot.rows, tokens, sequences) * size_of::<f32>()).sum()
    }
}

/// Number of rows of a kind.
pub(crate) fn count(rows: Rows, tokens: usize, sequences: usize) -> usize {
    match rows {
        Rows::Tokens => tokens,
        Rows::Sequences => sequences,
        Rows::Constant(rows) => rows,
    }
}

/// From the start of a row to the next: never a multiple of 2 KiB, at which rows would share a few sets of the cache.
pub(crate) fn stride(width: usize) -> usize {
    if width.is_multiple_of(512) { width + 16 } else { width }
}

/// Makes the schedule.
pub(crate) fn schedule(ir: &Ir) -> Schedule {
    let stages = stages(ir);
    let lives = lives(ir, &stages);
    let mut places = vec![Place::None; ir.values.len()];
    for step in &ir.steps {
        for operand in step.op.operands() {
            places[ir.root(operand).0] = Place::Constant;
        }
    }
    for &output in &ir.outputs {
        places[ir.root(output).0] = Place::Constant;
    }
    let mut arena: Vec<Slot> = Vec::new();
    let mut local = vec![Vec::new(); stages.len()];
    // Slots that hold a value, with the last stage that reads it.
    let mut taken: Vec<(usize, usize)> = Vec::new();
    for (number, stage) in stages.iter().enumerate() {
        taken.retain(|(_, last)| *last >= number);
        let mut released: Vec<usize> =
            (0..arena.len()).filter(|slot| !taken.iter().any(|(held, _)| held == slot)).collect();
        for &place in stage.steps() {
            let out = ir.steps[place].out;
            let Some(life) = lives[out] else { continue };
            if life.last == Last::Stage(number) && life.local {
                continue;
            }
            let info = &ir.values[out];
            let want = stride(info.width);
            let best = released
                .iter()
                .copied()
                .filter(|slot| arena[*slot].rows == info.rows)
                .min_by_key(|slot| arena_fit(arena[*slot], want));
            let slot = match best {
                Some(slot) => {
                    released.retain(|other| *other != slot);
                    arena[slot].stride = arena[slot].stride.max(want);
                    slot
                }
                None => {
                    arena.push(Slot { rows: info.rows, stride: want });
                    arena.len() - 1
                }
            };
            places[out] = Place::Arena(slot);
            let last = match life.last {
                Last::Stage(last) => last,
                Last::Caller => usize::MAX,
            };
            taken.push((slot, last));
        }
        local[number] = scratch(ir, stage, &lives, number, &mut places);
    }
    Schedule { stages, places, arena, local }
}

/// Least waste first; a slot that must grow after all that need not.
fn arena_fit(slot: Slot, want: usize) -> (bool, usize) {
    (slot.stride < want, slot.stride.abs_diff(want))
}

/// Cuts the steps.
fn stages(ir: &Ir) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for (place, step) in ir.steps.iter().enumerate() {
        let meeting = matches!(step.op, IrOp::Attention { .. } | IrOp::Pooling { .. } | IrOp::MaxOfLinear { .. });
        let kind = ir.values[step.out].rows;
        match stages.last_mut() {
            _ if meeting => stages.push(Stage::Meeting(place)),
            Some(Stage::Rows { rows, steps }) if *rows == kind => steps.push(place),
            _ => stages.push(Stage::Rows { rows: kind, steps: vec![place] }),
        }
    }
    stages
}

/// Who reads a value last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Last {
    Stage(usize),
    /// It is a result.
    Caller,
}

#[derive(Debug, Clone, Copy)]
struct Life {
    last: Last,
    /// Place of the step that reads it last.
    last_step: usize,
    /// Whether no other stage than its maker's reads it.
    local: bool,
}

/// The life of each value that a step makes; views count for what they view.
fn lives(ir: &Ir, stages: &[Stage]) -> Vec<Option<Life>> {
    let mut lives: Vec<Option<Life>> = vec![None; ir.values.len()];
    for (number, stage) in stages.iter().enumerate() {
        for &place in stage.steps() {
            for operand in ir.steps[place].op.operands() {
                let (root, _) = ir.root(operand);
                if let Some(life) = &mut lives[root] {
                    life.local &= life.last == Last::Stage(number);
                    life.last = Last::Stage(number);
                    life.last_step = place;
                }
            }
            let local = matches!(stage, Stage::Rows { .. });
            lives[ir.steps[place].out] = Some(Life { last: Last::Stage(number), last_step: place, local });
        }
    }
    for &output in &ir.outputs {
        if let Some(life) = &mut lives[ir.root(output).0] {
            *life = Life { last: Last::Caller, last_step: usize::MAX, local: false };
        }
    }
    lives
}

/// Gives the local values of a stage slots of the scratch, and says how wide those are.
fn scratch(ir: &Ir, stage: &Stage, lives: &[Option<Life>], number: usize, places: &mut [Place]) -> Vec<usize> {
    let mut widths: Vec<usize> = Vec::new();
    // The value that holds each slot, and its last reader.
    let mut held: Vec<Option<(Value, usize)>> = Vec::new();
    for &place in stage.steps() {
        let step = &ir.steps[place];
        let Some(life) = lives[step.out].filter(|life| life.local && life.last == Last::Stage(number)) else {
            continue;
        };
        let want = stride(ir.values[step.out].width);
        let in_place = in_place_operand(&step.op).filter(|x| {
            let dies = lives[*x].is_some_and(|of_x| of_x.last_step == place);
            let same = ir.values[*x].view.is_none() && stride(ir.values[*x].width) == want;
            dies && same && read_once(ir, &step.op, *x)
        });
        let reused = in_place.and_then(|x| held.iter().position(|slot| slot.is_some_and(|(value, _)| value == x)));
        let slot = reused.unwrap_or_else(|| {
            let free = (0..held.len())
                .filter(|slot| held[*slot].is_none_or(|(_, last)| last < place))
                .min_by_key(|slot| (widths[*slot] < want, widths[*slot].abs_diff(want)));
            free.unwrap_or_else(|| {
                widths.push(0);
                held.push(None);
                widths.len() - 1
            })
        });
        widths[slot] = widths[slot].max(want);
        held[slot] = Some((step.out, life.last_step));
        places[step.out] = Place::Local(slot);
    }
    widths
}

/// The operand whose memory the result may take.
pub(crate) fn in_place_operand(op: &IrOp) -> Option<Value> {
    match op {
        IrOp::LayerNorm { x, .. }
        | IrOp::RmsNorm { x, .. }
        | IrOp::Activation { x, .. }
        | IrOp::Scale { x, .. }
        | IrOp::Rotary { x, .. }
        | IrOp::L2Normalize { x }
        | IrOp::ClearEmpty { x } => Some(*x),
        IrOp::Add { a, .. } | IrOp::Multiply { a, .. } => Some(*a),
        IrOp::Gate { gate, .. } => Some(*gate),
        _ => None,
    }
}

/// Whether one operand alone lies in the memory of `value`.
fn read_once(ir: &Ir, op: &IrOp, value: Value) -> bool {
    op.operands().iter().filter(|operand| ir.root(**operand).0 == value).count() == 1
}
