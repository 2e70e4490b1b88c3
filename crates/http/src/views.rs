//! The JSON of the REST API, for its clients. Each type is defined beside its route.

pub use crate::page::Page;
pub use crate::routes::approvals::{Approval, DecisionCode};
pub use crate::routes::definitions::Definition;
pub use crate::routes::events::{Event, RawEvent};
pub use crate::routes::logins::{CompletedLogin, StartedLogin};
pub use crate::routes::notifications::{DeliveryInfo, NotificationInfo};
pub use crate::routes::policy::{ComparedRule, Explanation, FreezeInfo, PolicyStatus, RememberedApproval};
pub use crate::routes::presence::{NewAuthenticator, PresenceStatus};
pub use crate::routes::proposals::{ProposalInfo, ShownProposal};
pub use crate::routes::run_view::{Reason, RestoredRun, Run, Step, UnknownCall};
pub use crate::routes::schedules::{Firing, Schedule};
pub use crate::routes::secrets::SecretInfo;
pub use crate::routes::servers::Server;
pub use crate::routes::session::{Me, SignInLink};
pub use crate::routes::tokens::{CreatedToken, TokenInfo};
pub use crate::routes::tools::Tool;
pub use crate::routes::users::AccountEntry;
