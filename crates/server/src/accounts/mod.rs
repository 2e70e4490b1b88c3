//! Who uses a daemon: how somebody proves who they are.

pub(crate) mod oidc;
