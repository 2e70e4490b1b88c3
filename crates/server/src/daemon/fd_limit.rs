//! The limit on open file descriptors.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit of the process to its hard limit. Returns the limit that applies now.
pub(crate) fn raise() -> u64 {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    match raised {
        Ok(()) => maximum.unwrap_or(u64::MAX),
        Err(error) => {
            let limit = current.unwrap_or(u64::MAX);
            tracing::warn!(%error, limit, "cannot raise the limit on file descriptors");
            limit
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn soft_limit_becomes_the_hard_limit() {
        let limit = raise();
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        assert_eq!((current, limit), (maximum, maximum.unwrap_or(u64::MAX)));
    }
}
