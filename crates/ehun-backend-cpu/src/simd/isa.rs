//! Which instruction set runs: detected once, or forced by `EHUN_CPU`.

use super::int8::{Int8Kernel, PortableDot};
use super::{Kernel, Portable};

/// An instruction set that this machine has. Only [`Isa::detect`], [`Isa::from_name`] and [`Isa::available`] make one,
/// so holding one proves that its instructions exist here.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Isa(Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Generic,
    #[cfg(test)]
    Emulated16,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

/// Why an instruction set cannot be used.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum IsaError {
    /// The name is none of the known ones.
    #[error(
        "unknown instruction set `{0}` (EHUN_CPU): use one of generic, avx2, avx512, avx512vnni, neon, or unset it"
    )]
    Unknown(String),
    /// The name is known, but this machine does not have it.
    #[error("this machine has no {name} (EHUN_CPU): use one of {available}, or unset it to take the best")]
    Unavailable {
        /// The name asked for.
        name: String,
        /// What could be used, comma-separated.
        available: String,
    },
}

impl Isa {
    /// The instruction set named by the environment variable `EHUN_CPU`, or else the best that this machine has.
    ///
    /// # Errors
    /// When `EHUN_CPU` names none that this machine has.
    pub fn detect() -> Result<Self, IsaError> {
        match std::env::var("EHUN_CPU") {
            Ok(name) if !name.is_empty() && name != "auto" => Self::from_name(&name),
            _ => Ok(Self::best()),
        }
    }

    /// The best that this machine has.
    #[must_use]
    pub fn best() -> Self {
        Self::available().last().copied().unwrap_or(Self::generic())
    }

    /// Plain arrays of 4 lanes, everywhere.
    #[must_use]
    pub const fn generic() -> Self {
        Self(Kind::Generic)
    }

    /// All that this machine has, the best last.
    #[must_use]
    pub fn available() -> Vec<Self> {
        let mut list = vec![Self::generic()];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c") {
                list.push(Self(Kind::Avx2));
                if is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                {
                    list.push(Self(Kind::Avx512));
                    if is_x86_feature_detected!("avx512vnni") {
                        list.push(Self(Kind::Avx512Vnni));
                    }
                }
            }
        }
        #[cfg(target_arch = "aarch64")]
        {
            if std::arch::is_aarch64_feature_detected!("neon") {
                list.push(Self(Kind::Neon));
            }
        }
        list
    }

    /// The instruction set of that name: `generic`, `avx2`, `avx512`, `avx512vnni` or `neon`.
    ///
    /// # Errors
    /// When the name is unknown, or this machine does not have it.
    pub fn from_name(name: &str) -> Result<Self, IsaError> {
        #[cfg(test)]
        if name == "emulated16" {
            return Ok(Self(Kind::Emulated16));
        }
        let available = Self::available();
        if let Some(isa) = available.iter().find(|isa| isa.name() == name) {
            return Ok(*isa);
        }
        if !["avx2", "avx512", "avx512vnni", "neon"].contains(&name) {
            return Err(IsaError::Unknown(name.to_owned()));
        }
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        Err(IsaError::Unavailable { name: name.to_owned(), available: names.join(", ") })
    }

    /// Its name, as `EHUN_CPU` takes it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Generic => "generic",
            #[cfg(test)]
            Kind::Emulated16 => "emulated16",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => "avx512vnni",
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => "neon",
        }
    }

    /// Whether its vectors are those of AVX-512.
    #[must_use]
    pub const fn has_avx512(self) -> bool {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni => true,
            _ => false,
        }
    }

    /// Instantiates and runs a kernel with this instruction set.
    #[inline]
    pub fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Kind::Generic => kernel.run(Portable::<4, false>),
            #[cfg(test)]
            Kind::Emulated16 => kernel.run(Portable::<16, true>),
            // SAFETY: an Isa of this kind is only made after its features were detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { super::x86::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 | Kind::Avx512Vnni => unsafe { super::x86::run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => unsafe { super::neon::run_neon(kernel) },
        }
    }

    /// Instantiates and runs a kernel over byte dot products with this instruction set.
    #[inline]
    pub fn run_int8<K: Int8Kernel>(self, kernel: K) -> K::Output {
        match self.0 {
            Kind::Generic => kernel.run(PortableDot::<4, 2>),
            #[cfg(test)]
            Kind::Emulated16 => kernel.run(PortableDot::<16, 2>),
            // SAFETY: an Isa of this kind is only made after its features were detected.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => unsafe { super::int8::x86::run_avx2(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => unsafe { super::int8::x86::run_avx512(kernel) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => unsafe { super::int8::x86::run_vnni(kernel) },
            // The f32 tile is 4 vectors wide.
            #[cfg(target_arch = "aarch64")]
            Kind::Neon => kernel.run(PortableDot::<4, 4>),
        }
    }
}

impl std::fmt::Debug for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
