//! The table of all codes: a code is never reused for another meaning.

use super::Severity;

macro_rules! codes {
    ($($(#[doc = $doc:literal])+ $name:ident = $id:literal $severity:ident;)+) => {
        /// Which rule a definition breaks.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Code { $($(#[doc = $doc])+ $name,)+ }

        impl Code {
            /// Every code, in the order of the numbers.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The stable number, such as `SR201`.
            pub fn id(self) -> &'static str {
                match self { $(Self::$name => $id),+ }
            }

            /// The stable name, such as `InvalidPolicy`.
            pub fn name(self) -> &'static str {
                match self { $(Self::$name => stringify!($name)),+ }
            }

            /// Whether it stops the definition from running.
            pub fn severity(self) -> Severity {
                match self { $(Self::$name => Severity::$severity),+ }
            }

            /// What the code stands for.
            pub fn summary(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+).trim_ascii()),+ }
            }
        }
    };
}

codes! {
    /// The text is not YAML or JSON.
    InvalidSyntax = "SR001" Error;
    /// A key stands twice in one map.
    DuplicateKey = "SR002" Error;
    /// A key that means nothing here; nothing is ignored in silence.
    UnknownKey = "SR003" Error;
    /// A field that must be there is missing.
    MissingField = "SR004" Error;
    /// A value of another type than the field takes.
    WrongType = "SR005" Error;
    /// A value of the right type that the field cannot take.
    InvalidValue = "SR006" Error;
    /// More than a limit allows.
    LimitExceeded = "SR007" Error;
    /// Two fields that cannot stand together.
    ConflictingFields = "SR008" Error;
    /// A YAML number whose spelling other readers take differently.
    AmbiguousNumber = "SR009" Warning;

    /// A step without an id, or with an empty one.
    EmptyStepId = "SR101" Error;
    /// Two steps of one definition with the same id.
    DuplicateStepId = "SR102" Error;
    /// An id that paths and references could not hold.
    InvalidStepId = "SR103" Error;
    /// A tool name outside `^[A-Za-z0-9_.-]{1,128}$`.
    InvalidToolName = "SR104" Error;
    /// `depends_on`, `next`, `then`, `join`, `parallel`, `start` or `goto` names a step that is not there.
    UnknownStep = "SR105" Error;
    /// Steps that wait for one another.
    DependencyCycle = "SR106" Error;
    /// A step that nothing leads to.
    UnreachableStep = "SR107" Error;
    /// A `join` that no `parallel` leads to.
    JoinWithoutFork = "SR108" Error;
    /// A `parallel` of the graph form whose branches do not meet in one `join`.
    InvalidFork = "SR109" Error;
    /// A jump that cannot be made from here.
    InvalidGoto = "SR110" Error;
    /// A tool that the definition's own `allowed_tools` leaves out.
    ToolNotAllowed = "SR111" Error;
    /// Two steps that declare the same output.
    DuplicateOutput = "SR112" Error;

    /// A policy that cannot be kept: no attempts, no time, delays the wrong way round.
    InvalidPolicy = "SR201" Error;
    /// A jitter outside [0, 1]; it is clamped.
    JitterClamped = "SR202" Warning;

    /// A `{{…}}` or `$` reference that does not parse.
    InvalidTemplate = "SR301" Error;
    /// A reference whose first name is no input, step, loop variable or well-known root.
    UnknownTemplateVar = "SR302" Error;
    /// A JSONPath query that does not parse or reaches outside the run.
    InvalidJsonPath = "SR303" Error;
    /// A condition or expression that does not parse.
    InvalidExpression = "SR304" Error;
    /// A reference to a step that can never have run before.
    NeverRunsBefore = "SR305" Error;
    /// A reference from outside to a step inside a loop, which has many results.
    InsideLoop = "SR306" Error;
    /// An input that is used but not declared.
    UndeclaredInput = "SR307" Warning;
    /// A name that means two things; the bare name means the first.
    ShadowedName = "SR308" Warning;

    /// A branch that fails the run when no condition holds.
    BranchWithoutElse = "SR401" Warning;
    /// A definition without a name of its own.
    UnnamedDefinition = "SR402" Warning;

    /// A tool that its server does not have; checked where servers are known.
    UnknownTool = "SR501" Warning;
    /// Arguments that a tool does not take; checked where servers are known.
    WrongArguments = "SR502" Error;
    /// A reference to something that a tool does not give, or of another type; checked where servers are known.
    DoubtfulArgument = "SR503" Warning;
    /// A tool that may destroy something, and no gate before it; checked where servers are known.
    UngatedDestruction = "SR504" Warning;
    /// A retried call that is not repeated after an unknown outcome, because its tool is not known to be repeatable;
    /// checked where servers are known.
    RetriedEffect = "SR505" Warning;
    /// An argument that is not among the properties of the tool's schema; checked where servers are known.
    UnknownArgument = "SR506" Warning;
    /// A server that cannot be reached, so that calls of its tools were not checked.
    ServerDown = "SR507" Warning;
    /// A `workflow` step that names a definition that is not stored; checked where definitions are known.
    UnknownWorkflow = "SR508" Warning;
    /// A tool that the user may not call; checked where the user is known.
    ToolDenied = "SR509" Warning;
    /// A reference to something that a tool's output schema rules out; checked where servers are known.
    UnknownOutput = "SR510" Warning;
    /// `effects` says something else than the annotations of the tool; checked where servers are known.
    ContradictedEffects = "SR511" Error;

    /// More errors than are shown.
    TooManyProblems = "SR901" Error;
    /// More warnings than are shown.
    TooManyWarnings = "SR902" Warning;
}
