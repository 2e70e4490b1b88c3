//! The table of diagnostic codes. A code is never reused with another meaning.

use super::Severity;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $id:literal $severity:ident;)+) => {
        /// The rule that a definition breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])+ $name,)+ }

        impl Code {
            /// All codes, in ascending order.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The stable id, such as `SR201`.
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => $id),+ }
            }

            /// The stable name, such as `InvalidPolicy`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// Whether the problem is an error or a warning.
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }

            /// The meaning of the code, for the reference page.
            pub fn summary(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

codes! {
    /// The text is not valid YAML or JSON.
    InvalidSyntax = "SR001" Error;
    /// A map contains a key twice.
    DuplicateKey = "SR002" Error;
    /// A key is unknown or not allowed here. No key is silently ignored.
    UnknownKey = "SR003" Error;
    /// A required field is missing.
    MissingField = "SR004" Error;
    /// A value has the wrong type.
    WrongType = "SR005" Error;
    /// A value has the right type, but is not allowed here.
    InvalidValue = "SR006" Error;
    /// A limit is exceeded.
    LimitExceeded = "SR007" Error;
    /// Two fields cannot be used together.
    ConflictingFields = "SR008" Error;
    /// Other YAML parsers read this number differently.
    AmbiguousNumber = "SR009" Warning;

    /// The id of a step is missing or empty.
    EmptyStepId = "SR101" Error;
    /// Two steps have the same id.
    DuplicateStepId = "SR102" Error;
    /// A step id is too long, or contains characters that paths and references do not allow.
    InvalidStepId = "SR103" Error;
    /// A tool name does not match `^[A-Za-z0-9_.-]{1,128}$`.
    InvalidToolName = "SR104" Error;
    /// `depends_on`, `next`, `then`, `join`, `parallel`, `start` or `goto` names a step that does not exist.
    UnknownStep = "SR105" Error;
    /// Steps, or values of a `let` step, depend on one another in a cycle.
    DependencyCycle = "SR106" Error;
    /// A step cannot be reached from the first step of the graph.
    UnreachableStep = "SR107" Error;
    /// A `join` is outside the branches of any `parallel`.
    JoinWithoutFork = "SR108" Error;
    /// The branches of a `parallel` of the graph form do not meet at one `join`.
    InvalidFork = "SR109" Error;
    /// A `goto` leaves its list of steps, jumps backwards in a list, or is used in a DAG.
    InvalidGoto = "SR110" Error;
    /// A step calls a tool that is not in the definition's `allowed_tools`.
    ToolNotAllowed = "SR111" Error;
    /// An output is declared twice.
    DuplicateOutput = "SR112" Error;

    /// A policy is contradictory or out of range: no attempts, a timeout of zero, an initial delay above the maximum.
    InvalidPolicy = "SR201" Error;
    /// A jitter is outside [0, 1] and is clamped.
    JitterClamped = "SR202" Warning;

    /// A `{{…}}` or `$` reference cannot be parsed.
    InvalidTemplate = "SR301" Error;
    /// The first name of a reference is not an input, a step, a loop variable or a reserved name.
    UnknownTemplateVar = "SR302" Error;
    /// A JSONPath query cannot be parsed, or does not start at a value of the run.
    InvalidJsonPath = "SR303" Error;
    /// A condition or expression cannot be parsed.
    InvalidExpression = "SR304" Error;
    /// A reference reads a step that can never have run before.
    NeverRunsBefore = "SR305" Error;
    /// A reference outside a loop reads a step inside the loop, which has one result per item.
    InsideLoop = "SR306" Error;
    /// An input is used but not declared.
    UndeclaredInput = "SR307" Warning;
    /// A step or loop variable shares its name with an input, a step or a reserved name, so the bare name is ambiguous.
    ShadowedName = "SR308" Warning;

    /// A branch with several cases has no `else`, so the run fails if no condition holds.
    BranchWithoutElse = "SR401" Warning;
    /// The definition has no `name`.
    UnnamedDefinition = "SR402" Warning;

    /// The server has no such tool. Checked against connected servers.
    UnknownTool = "SR501" Warning;
    /// The arguments do not match the tool's input schema. Checked against connected servers.
    WrongArguments = "SR502" Error;
    /// A reference in an argument may have no value or the wrong type. Checked against connected servers.
    UnverifiedArgument = "SR503" Warning;
    /// A destructive tool is called without a gate before it. Checked against connected servers.
    UngatedDestruction = "SR504" Warning;
    /// A call with a retry policy is not retried after an unknown outcome, because its tool is not known to be idempotent.
    /// Checked against connected servers.
    RetryNotIdempotent = "SR505" Warning;
    /// An argument is not a property of the tool's input schema. Checked against connected servers.
    UnknownArgument = "SR506" Warning;
    /// A server cannot be reached, so calls of its tools were not checked.
    ServerDown = "SR507" Warning;
    /// A `workflow` step names a definition that is not stored. Checked against the definitions of the server.
    UnknownWorkflow = "SR508" Warning;
    /// The user is not allowed to call a tool. Checked for a signed-in user.
    ToolDenied = "SR509" Warning;
    /// A reference reads a value that the tool's output schema excludes. Checked against connected servers.
    UnknownOutput = "SR510" Warning;
    /// `effects` contradicts the annotations of the tool. Checked against connected servers.
    ContradictedEffects = "SR511" Error;
    /// An argument refers to a secret that does not exist or may not be sent to the server. Checked where the secrets are known.
    UnusableSecret = "SR512" Warning;
    /// A reference reads an environment variable that the setting `definitions.env` does not list. Checked where the setting is
    /// known.
    UnlistedVariable = "SR513" Warning;
    /// A user and a group have the name of an approver or recipient. Checked where users and groups are known.
    AmbiguousPrincipal = "SR514" Error;
    /// An approver or recipient does not exist. Checked where users and groups are known.
    UnknownPrincipal = "SR515" Error;
    /// An approver or recipient is not configured. Checked where recipients are known, without user accounts.
    UnlistedPrincipal = "SR516" Warning;

    /// A user or group is written without its type. Only in a policy.
    UntypedPrincipal = "SR601" Error;
    /// Two rules have the same name, or a rule has the name of the default. Only in a policy.
    DuplicateRule = "SR602" Error;
    /// An earlier rule matches every call. Only in a policy.
    UnreachableRule = "SR603" Warning;
    /// A rate, a budget, a quorum or another limit cannot be parsed or is out of range. Only in a policy.
    InvalidLimit = "SR604" Error;
    /// A time zone does not exist. Only in a policy.
    UnknownTimeZone = "SR605" Error;

    /// Further errors are not shown.
    TooManyProblems = "SR901" Error;
    /// Further warnings are not shown.
    TooManyWarnings = "SR902" Warning;
}
