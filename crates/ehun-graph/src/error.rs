//! What can be wrong with a graph or a batch.

/// An error in building a graph or in matching it with weights or input. Each message names the operation.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum GraphError {
    /// An operand has a shape that the operation cannot take.
    #[error("operation `{operation}`: {message}")]
    Shape {
        /// Label of the operation, for example `encoder.layer.0.attention.self`.
        operation: String,
        /// What was expected and what was found.
        message: String,
    },
    /// A parameter of an operation is outside what it can mean.
    #[error("operation `{operation}`: {message}")]
    Parameter {
        /// Label of the operation.
        operation: String,
        /// What is wrong and what would be right.
        message: String,
    },
    /// The weights lack a tensor that the graph refers to.
    #[error("operation `{operation}` needs the tensor `{tensor}`, which the checkpoint does not have")]
    MissingWeight {
        /// Label of the first operation that uses it.
        operation: String,
        /// Name of the tensor in the checkpoint.
        tensor: String,
    },
    /// A tensor of the checkpoint has another shape than the graph expects.
    #[error(
        "operation `{operation}`: tensor `{tensor}` has shape {found:?} in the checkpoint, the configuration asks for {expected:?}"
    )]
    WeightShape {
        /// Label of the first operation that uses it.
        operation: String,
        /// Name of the tensor in the checkpoint.
        tensor: String,
        /// Shape that follows from the configuration.
        expected: Vec<usize>,
        /// Shape in the checkpoint.
        found: Vec<usize>,
    },
    /// A tensor has a storage type that no weight can have.
    #[error("tensor `{tensor}` is stored as {found}; weights are F32, F16 or BF16")]
    WeightType {
        /// Name of the tensor in the checkpoint.
        tensor: String,
        /// Its storage type as the file names it.
        found: String,
    },
    /// A batch does not fit the graph.
    #[error("sequence {sequence} of the batch: {message}")]
    Batch {
        /// Number of the sequence in the batch, from 0.
        sequence: usize,
        /// What is wrong.
        message: String,
    },
}
